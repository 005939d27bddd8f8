"""Slips put into the code one by one, to see whether the tests notice them."""
