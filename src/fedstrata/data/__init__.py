"""Federations: data sets, partition laws, splits and augmentation."""

from __future__ import annotations

from fedstrata.data.arrays import source_of
from fedstrata.data.augment import Augment, parse_augment
from fedstrata.data.copies import Copy, Duplicates, duplicates
from fedstrata.data.facts import Facts, facts_of
from fedstrata.data.federation import Federation
from fedstrata.data.load import DataSpec, assemble, check_spec, load
from fedstrata.data.own import ClientTests
from fedstrata.data.partition import Partition
from fedstrata.data.picture import label_table, partition_picture
from fedstrata.data.place import Place, Reader
from fedstrata.data.registry import Row, datasets, partitions, register_dataset, register_law
from fedstrata.data.samples import Samples
from fedstrata.data.task import Groups, Source, Task

__all__ = [
    "Augment",
    "ClientTests",
    "Copy",
    "DataSpec",
    "Duplicates",
    "Facts",
    "Federation",
    "Groups",
    "Partition",
    "Place",
    "Reader",
    "Row",
    "Samples",
    "Source",
    "Task",
    "assemble",
    "check_spec",
    "datasets",
    "duplicates",
    "facts_of",
    "label_table",
    "load",
    "parse_augment",
    "partition_picture",
    "partitions",
    "register_dataset",
    "register_law",
    "source_of",
]
