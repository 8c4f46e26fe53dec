"""Views as text: lines, tables and live displays of a terminal."""
