"""What is in the traces: serial, AND and OR steps, and what parallel decoding could bring."""
