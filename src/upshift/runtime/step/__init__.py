"""What runs in the step's own process: its inputs and outputs, and all that its code can ask of Upshift."""
