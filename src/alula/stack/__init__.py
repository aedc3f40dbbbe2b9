"""Plans of a serving stack: indexes, constraints, plan, build, switch, roll back."""
