"""Many ranks, one graph: how what several processes recorded is gathered and merged."""
