"""What somebody says about a machine, confronted with what its steps must cost."""
