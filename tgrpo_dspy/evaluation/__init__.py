"""Scoring a program on a validation set."""
