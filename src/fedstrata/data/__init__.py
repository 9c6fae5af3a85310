"""Federations: data sets, partition laws, splits and augmentation."""

from __future__ import annotations

from fedstrata.data.augment import Augment, parse_augment
from fedstrata.data.checks import Duplicates, duplicates
from fedstrata.data.facts import Facts, facts_of
from fedstrata.data.federation import Federation
from fedstrata.data.load import DataSpec, check_spec, load
from fedstrata.data.own import ClientTests
from fedstrata.data.partition import Partition
from fedstrata.data.picture import label_table, partition_picture
from fedstrata.data.registry import Row, datasets, partitions, register_dataset, register_law
from fedstrata.data.samples import Samples
from fedstrata.data.task import Groups, Source, Task

__all__ = [
    "Augment",
    "ClientTests",
    "DataSpec",
    "Duplicates",
    "Facts",
    "Federation",
    "Groups",
    "Partition",
    "Row",
    "Samples",
    "Source",
    "Task",
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
]
