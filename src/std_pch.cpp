// SPDX-License-Identifier: Apache-2.0
// Nothing but a source for the target that owns the precompiled header of the standard library.
