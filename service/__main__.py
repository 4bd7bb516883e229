"""``python -m service``: the same as the command ``nightjar``."""

from service.commands.cli import main

if __name__ == "__main__":
    main()
