"""Draft trees, the walk, drafters and the policy that decides how much to draft."""
