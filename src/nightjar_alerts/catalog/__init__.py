"""Catalogues of classes: ``nightjar catalog``, and the same work on partitions of LSDB.

``partitions`` finds the partitions of an input and ``hats`` those of a HATS catalogue. ``reading`` reads the rows of a
partition with the reader of tables and packets, ``bands`` joins rows of one object, and ``increments`` copies rows of
an earlier catalogue. ``columns`` makes the columns of the output, ``partition`` classifies and writes a partition, and
``run`` continues an interrupted catalogue.
"""
