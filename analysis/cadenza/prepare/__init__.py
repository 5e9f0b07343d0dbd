# SPDX-License-Identifier: Apache-2.0
"""`cadenza-prepare`: texts become files of tokens.

A reader cuts a file of documents into blocks, an `Encoder` makes tokens of a block, in any process,
and a `Folder` writes them as shards.
"""
