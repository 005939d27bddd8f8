"""Callbacks for the trainers of other libraries, one file for each library."""
