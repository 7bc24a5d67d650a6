"""The Schedule and how to build and transform one."""
