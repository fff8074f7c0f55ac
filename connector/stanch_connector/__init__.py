"""What Stanch ships into a vLLM pod. So far: the names that it shares with the operator (contract.py)."""
