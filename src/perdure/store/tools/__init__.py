"""What is done to a whole store: moving it, checking it, removing what is too old, looking at its database."""
