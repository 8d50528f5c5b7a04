"""One wire protocol a file: requests through the official SDK, streams decoded into chunks."""
