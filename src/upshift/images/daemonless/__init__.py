"""Images that are made without a container engine: installed into a folder, pushed as layers."""
