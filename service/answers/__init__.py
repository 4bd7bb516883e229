"""Results as clients receive them, over HTTP and in streams: declarations, serializers and model descriptions."""
