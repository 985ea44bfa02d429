"""What answers: the contract, the simulated default, and others behind the same door."""
