"""Pickers: who is chosen among the scored candidates."""
