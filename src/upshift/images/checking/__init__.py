"""What is found out about an image before it is built, and the dated tables that say so."""
