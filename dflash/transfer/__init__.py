"""From target ranks to drafter ranks: roles, the layout of packets, bounded rings, and the channel."""
