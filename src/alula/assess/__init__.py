"""Whether a change is worth making: what it opens, gains and costs, and what else one could do."""
