"""The site of the documentation: the pages of docs/, one page for each pass, and the Python interface.

`make docs` runs ``python -m tools.site``. Pages are generated below build/site; Zensical makes HTML of them.
"""
