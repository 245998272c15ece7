"""Answering questions by searching the web and reading its pages."""
