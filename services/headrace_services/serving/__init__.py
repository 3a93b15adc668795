"""What every server of Headrace does for its callers before a method sees a call, and what it lets none of them have.

A caller is a stranger until it has shown who it is: a token, or the certificate of its connection. Strangers may ask
for a server's health, and join with a token of their own. Everything else that they send is refused unread.

    a connection → a call → whose it is → its request → the method → its answer is taken

Each arrow is bounded (`limits`), for strangers all together and for each caller that is known. No bound of strangers is
one of a connection or an address: behind one address there may be a whole cluster. They share places (`places`), and
where none is free the one gives way whose address has the most. So whoever wants many takes them from itself.

gRPC tells nobody that a client does not read, and closes no connection of its own accord while the client answers its
pings. So `connections` hangs up, by the socket's descriptor.
"""
