"""Objects: named bytes in a folder or in a bucket, behind one interface."""
