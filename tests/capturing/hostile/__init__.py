"""Modelling code of the kinds that come with a model and that no library has checked."""
