"""Other people's servers, installed and started for comparison."""
