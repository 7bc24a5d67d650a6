"""What decode.py measures: ways to decode, bytes sent, memory read and held."""
