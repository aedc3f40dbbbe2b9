"""An environment's upgrade: planned, built beside the working one, verified, rolled back."""
