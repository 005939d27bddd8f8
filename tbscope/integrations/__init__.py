"""Callbacks for those who train with another library, one file for each library."""
