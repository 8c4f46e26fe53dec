"""Views: a run, a plan, or what runs now, as plain data that terminals, pages and JSON show."""
