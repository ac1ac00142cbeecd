#!/usr/bin/env python3
"""Galley's command line: `manage.py <noun> <verb>`, over the same services as the pages and the API."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    from controlplane.running import use_running_services

    use_running_services()
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
