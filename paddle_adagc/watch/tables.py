# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of ``record.sqlite``, for its writer and its readers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

FILE = "record.sqlite"
VERSION = 1
QUANTITIES = ("norm", "gamma", "h")
"""Of each tensor, in this order in a row's ``content``."""

FRESH_SECONDS = 15.0
"""A process that has said something so lately is taken to be alive."""

TABLES = """
CREATE TABLE info (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tensors (id INTEGER PRIMARY KEY, key TEXT UNIQUE);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, start INTEGER, facts TEXT,
    ending TEXT, heard REAL);
CREATE TABLE steps (session INTEGER, step INTEGER, numbers TEXT,
    PRIMARY KEY (session, step)) WITHOUT ROWID;
CREATE TABLE rows (session INTEGER, step INTEGER, is_whole INTEGER,
    content BLOB, PRIMARY KEY (session, step));
CREATE TABLE kept (session INTEGER, first INTEGER, last INTEGER,
    PRIMARY KEY (session, first)) WITHOUT ROWID;
CREATE TABLE alarms (session INTEGER, step INTEGER, kind TEXT, series TEXT,
    facts TEXT, PRIMARY KEY (session, step, kind, series)) WITHOUT ROWID;
"""
"""``content`` is float32, or its upper 16 bits where ``is_whole`` is 0."""


def check_tables(file: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that has other tables, or views and triggers.

    Raises:
        ValueError: It is no record, or of another version.
    """
    query = "SELECT type, name, sql FROM sqlite_master"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(TABLES)
        expected = {*empty.execute(query)}
    if {*file.execute(query)} != expected:
        raise ValueError(f"{path} is no record: it has other tables")
    query = "SELECT value FROM info WHERE name = 'version'"
    version = file.execute(query).fetchone()
    if version != (VERSION,):
        raise ValueError(f"{path} has version {version!r:.40}, not {VERSION}")
