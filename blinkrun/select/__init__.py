"""Which trees and which chunks a collective takes, by its size: predicted, or tuned as it runs."""
