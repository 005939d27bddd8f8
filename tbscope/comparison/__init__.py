"""How two graphs differ, told as a person would tell it, and whether one is still what it was."""
