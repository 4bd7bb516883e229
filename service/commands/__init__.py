"""The command line: classify, check, demo, and the client they share."""
