"""From fragments to messages: order, reassembly, fragmentation, batching, topic sequence numbers."""
