"""What a step's code is: fingerprints for reuse, and the packages in which it travels."""
