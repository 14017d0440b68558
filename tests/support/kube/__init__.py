# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server and its etcd on loopback, and clients, users and objects for tests."""
