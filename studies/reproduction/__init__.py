"""What a paper is here, how its claims are judged, and where the runs behind them are kept."""
