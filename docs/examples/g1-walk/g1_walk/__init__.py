"""A task for the policy of somebody else: a humanoid that walks."""
