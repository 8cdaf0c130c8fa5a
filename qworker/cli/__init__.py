"""The command line: one module a command, each imported when it is called.

Comes from:  people and init systems.
Goes to:     the client and the worker, by the same doors that code uses.
Thread:      main.
"""
