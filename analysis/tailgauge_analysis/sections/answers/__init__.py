"""What is special in the answers: fields of JSON, calls of tools, thinking, turns of a conversation."""
