"""Flows: a pipeline as a class whose methods are steps, each of which says where it goes next."""
