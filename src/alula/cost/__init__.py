"""What a step must cost: bytes, operations, launches, collectives; break-even. No torch."""
