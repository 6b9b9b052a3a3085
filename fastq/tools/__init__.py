"""The workshop: files, model directories, layouts of other systems, pictures, the command line.

The core never imports it.
"""
