"""Where everything of a program is, as one page to be looked at: devices, layers, copies.

`model` says what is drawn, as plain data; `page` writes it with the script that draws it.
"""
