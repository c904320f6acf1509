"""Never imported: its place in ``__pycache__`` holds the archive of compiled modules (`ortopt.cli.module_archive`).

So whatever moves or uninstalls ortopt takes the archive along, as it does other compiled files.
"""
