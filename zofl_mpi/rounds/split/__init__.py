"""Parts of a round of split learning: messages, the client's steps, the server's, costs, reports."""
